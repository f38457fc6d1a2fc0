from anatune.measure.cpu.calibration.tiles import MeasuredTile, RegisterTile
from bench.models.cpu_registers import classes


def test_good_tiles_form_classes():
    shares = {
        RegisterTile(9, 2, 1): 0.95,
        RegisterTile(8, 2, 1): 0.95,
        RegisterTile(16, 2, 1): 0.5,
        RegisterTile(5, 3, 2): 0.8,
    }
    measured = [MeasuredTile(tile, share, 0.9, 0) for tile, share in shares.items()]
    assert classes(measured) == {(2, 1): [8, 9], (3, 2): [5]}
