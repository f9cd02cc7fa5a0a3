"""Function vectors: heads whose mean output carries a task from examples in the prompt to the
answer."""
