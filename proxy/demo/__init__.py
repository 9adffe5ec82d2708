"""The demonstration: a recorded agent session through a real gateway, with no key and no network.

recording   what was said: a session that ships with the gateway
model       the scripted model: says what the recorded one said, and reads an original back when told to
upstream    serves the model as an OpenAI-compatible provider
process     the gateway, in a process of its own
agent       the client: the official OpenAI package, keeping its own history
replay      puts them together and judges what came of it
pages       the answers of the reading tool, put together again
"""
