"""Relations from weights: heads that turn Monday into Tuesday, a noun into its plural, a country
into its capital."""
