"""Work with a model that changes: disabling heads, removing them, comparing models, fine-tuning."""
