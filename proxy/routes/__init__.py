"""What answers HTTP requests: thin handlers that hand exchanges to a gateway, and health."""
