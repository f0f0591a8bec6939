"""The parts of diagnose(): a moment, the steps of a run, what is wrong, and what a replay says of remedies."""
