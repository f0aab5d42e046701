"""Programs from npm and PyPI, installed by lock files; Node.js and Python for them."""
