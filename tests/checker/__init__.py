"""An independent checker: judges recorded histories by the guarantees, knowing nothing of the gateway's code."""
