"""Steps of the coordinator: the paper, one after the other."""
