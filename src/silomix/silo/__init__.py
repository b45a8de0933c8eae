"""What runs next to the rows. `answer` is all that the outside can call."""
