"""What tools/check_long.py and tools/soak.py are made of: the parts, and the tree's identity."""
