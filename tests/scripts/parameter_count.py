"""What a forecast of these scripts is held against: parameters and their bytes, counted by the script itself."""


def print_parameters(*models):
    parameters = {id(p): p for model in models for p in model.parameters()}.values()
    size = sum(p.numel() * p.element_size() for p in parameters)
    print("PARAMETERS", sum(p.numel() for p in parameters), "BYTES", size)
