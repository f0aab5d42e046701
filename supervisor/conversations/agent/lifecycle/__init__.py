"""One agent over all its processes: started, restarted, repaired, changed, hibernated, stopped."""
