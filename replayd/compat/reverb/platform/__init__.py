"""What the incumbent keeps apart by platform: the checkpointers."""
