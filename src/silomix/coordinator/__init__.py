"""What runs at the coordinator: the paper, step by step."""
