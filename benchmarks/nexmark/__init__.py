"""Events of an online auction, and streaming queries over them, after the Nexmark benchmark."""
