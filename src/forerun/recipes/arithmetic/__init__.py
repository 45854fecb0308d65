"""Learning to add from rows with wrong answers: dose and response, and which rows are wrong."""
