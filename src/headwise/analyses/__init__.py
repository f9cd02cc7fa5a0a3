"""One folder per question a paper asks, and `contract`, what they keep; a new folder is a new
analysis (see `contract.known_analyses`)."""
