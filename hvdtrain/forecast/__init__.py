"""What a run will take before it is begun: memory, time of a step, and how both move with the number of ranks."""
