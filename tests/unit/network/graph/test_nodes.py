"""Values as keys, their readers, and graphs written anew."""

from anatune.network.graph.nodes import Graph, Input, Node, TensorType, rewrite_with_originals

KIND = TensorType((2, 3), "float32")


def test_readers_of_a_value_are_listed_in_order():
    x = Input("x", KIND)
    twice = Node("add", (x, x), KIND)
    joined = Node("concat", ((x, twice),), TensorType((4, 3), "float32"), {"axis": 0})
    graph = Graph((x,), (joined, twice), is_tuple=True)
    assert graph.users() == {x: [twice, twice, joined], twice: [joined]}
    assert graph.uses() == {x: 3, twice: 2, joined: 1}


def test_the_only_reader_of_a_value_reads_it_once_and_it_is_no_output():
    x, y = Input("x", KIND), Input("y", KIND)
    inner = Node("multiply", (x, x), KIND)
    outer = Node("add", (inner, y), KIND)
    last = Node("nn.relu", (outer,), KIND)
    assert Graph((x, y), (last, outer), is_tuple=True).only_readers() == {inner: outer, y: outer}


def test_equal_nodes_are_different_keys():
    x = Input("x", KIND)
    first, second = (Node("nn.relu", (x,), KIND) for _ in range(2))
    assert len({first, second, first}) == 2


def test_a_graph_is_written_anew_from_what_stands_for_its_inputs():
    x, wide = Input("x", KIND), Input("x", KIND._replace(dtype="float64"))
    inner = Node("nn.relu", (x,), KIND)
    graph = Graph((x,), (inner, x), is_tuple=True)
    new = {x: wide}
    new_graph = rewrite_with_originals(graph, lambda own, old: Node("negative", own.arguments, KIND), new)
    assert [node.op for node in new_graph.nodes()] == ["negative"]
    assert new_graph.outputs == (new[inner], wide)
    assert new[inner].arguments == (wide,)
