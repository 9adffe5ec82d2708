"""Wire formats: adapters between raw messages and the neutral history."""
