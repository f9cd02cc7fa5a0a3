"""The parts of probing: which tasks, vectors of all heads in one pass, all probes of a task, and the labelled result."""
