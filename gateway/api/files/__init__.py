"""Files of clients, passed on in pieces: uploads, downloads, archives."""
