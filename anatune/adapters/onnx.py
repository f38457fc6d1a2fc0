"""Sessions as onnxruntime's, and the backend that runs the tests of the standard."""

from anatune.network.backends.onnx import Backend as Backend
from anatune.network.backends.onnx import InferenceSession as InferenceSession
from anatune.network.backends.onnx import Prepared as Prepared
from anatune.network.backends.onnx import TensorInfo as TensorInfo
