"""`make run`: everything on one machine, with an example engine, under one supervisor."""
