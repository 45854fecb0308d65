"""DeepSpeed's own engine on the virtual GPU beside the settings that stand for it."""
