"""The ground everything stands on: errors, files, the cache, papers, the version."""
