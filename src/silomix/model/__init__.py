"""The model: variables, prior, likelihoods, and how a table becomes rows."""
