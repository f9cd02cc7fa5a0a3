"""How many connections the explorer's server holds, and for how long silent ones."""

MOST_CONNECTIONS = 100
REQUEST_TIMEOUT = 20.0  # seconds that a request may take to arrive
