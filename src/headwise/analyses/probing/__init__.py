"""The parts of probing: vectors of all heads in one pass, all probes of a task, and the labelled
result."""
