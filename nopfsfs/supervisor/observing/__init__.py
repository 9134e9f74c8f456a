"""The mount as figures: records of epochs, history, and the figures that metrics are made of."""
