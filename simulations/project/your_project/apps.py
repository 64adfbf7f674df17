"""The two sides of the project for Flower; ``flwr run .`` starts them."""

import engram

client = engram.make_client_app(__name__)
server = engram.make_server_app(__name__)
