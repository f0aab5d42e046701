"""Starting processes: the spawner, forks of a preloaded program, descriptors and limits of a child."""
