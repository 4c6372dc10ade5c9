"""Other people's trainers beside cupola's own loop."""
