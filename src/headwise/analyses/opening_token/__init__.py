"""The opening token: what heads do with and without it (Xiao et al. 2023, Gu et al. 2024)."""
