"""What the gateway says about itself."""
