"""What heads do, in words, from what the analyses found."""
