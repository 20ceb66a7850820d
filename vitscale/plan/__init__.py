"""What to train: configs, designs, studies and their cost. Imports nothing heavy."""
