"""How processes begin: the spawner, forks of a parent, descriptors and limits of a child."""
