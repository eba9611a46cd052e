"""What a recipe will take, before it is launched: memory per pipeline stage, seconds per step, and how sure that is. Pure."""
