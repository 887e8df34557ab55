"""What would help a GPU that idles, by how much, and whether it did."""
