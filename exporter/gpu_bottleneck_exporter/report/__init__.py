"""What jobs lost, to what, and what would have helped: reading, arithmetic, and how it is shown."""
