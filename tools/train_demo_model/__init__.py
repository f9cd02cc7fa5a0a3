"""Training of the built-in model: text to tokens, training, evaluation, packing."""
