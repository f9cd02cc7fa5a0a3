"""Running moments, tests, corrections, intervals and divergences: pure functions on arrays."""
