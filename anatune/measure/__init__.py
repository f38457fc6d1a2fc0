"""What the present machine says about itself."""
