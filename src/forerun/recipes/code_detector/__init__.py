"""AI-written code detection: classification and supervised contrastive learning."""
