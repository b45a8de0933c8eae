"""What is assumed: variables, prior, likelihoods, and how rows are read."""
