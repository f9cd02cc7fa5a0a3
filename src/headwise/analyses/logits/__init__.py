"""Direct logit attribution: what each head adds to the logit of the next token."""
