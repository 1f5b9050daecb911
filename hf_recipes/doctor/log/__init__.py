"""What a log of any trainer says of why it ended: known messages, their causes and cures."""
