"""Where the data is: the ClientApp, the trainer, and the personal memory."""
