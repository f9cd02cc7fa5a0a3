"""One module per question a paper asks, and `base`, the contract they keep; a new file is a new analysis (see `base.known_analyses`)."""
