"""The clients' side, where the data is: ClientApp, trainer and personal memory."""
