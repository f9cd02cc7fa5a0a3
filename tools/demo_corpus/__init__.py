"""A small English grammar that knows the true tree, coreference and frame of each sentence it
makes."""
